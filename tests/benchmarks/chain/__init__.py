"""The programs that `server_chain` starts: servers to measure, their limit, and who calls them."""
