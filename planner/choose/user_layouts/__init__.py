"""Complete layouts that users state in part or in configuration files, and improve them."""
