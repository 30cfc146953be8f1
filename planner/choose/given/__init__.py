"""Given: layouts that users state in part or in configuration files, completed and improved."""
