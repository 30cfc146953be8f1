"""Reports: answers as whole documents, and the report on collectives."""
