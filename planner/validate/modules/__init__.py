"""What a user's own module computes and keeps, traced without data."""
