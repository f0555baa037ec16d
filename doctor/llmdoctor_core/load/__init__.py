"""The short real load: starts the server as asked, reads what it says, sends one request and leaves nothing behind."""
