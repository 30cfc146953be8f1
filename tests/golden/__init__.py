"""Golden: answers, figures, files, readings and texts as they are, numbers to the digit."""
