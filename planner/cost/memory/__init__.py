"""Memory: bytes on the device, on the host and on the local disk."""
