"""What is wrong with a repository's sessions, and how it is put right."""
