"""A third party's package: one house rule of a company as a check, a remedy and a log signature."""
