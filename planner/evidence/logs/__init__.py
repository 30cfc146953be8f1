"""Logs: what training loops print, beside the estimate of their job."""
