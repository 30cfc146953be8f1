"""Show: answers for people: tables, words, figures."""
