"""The remedies: each makes a plan from a finding and its case; none acts by itself."""
