"""Pictured: what pictures show of an answer, the space of its layouts and the anatomy of one."""
