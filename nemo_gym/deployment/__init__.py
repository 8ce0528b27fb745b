"""From a resolved config to running servers, and back to nothing."""
