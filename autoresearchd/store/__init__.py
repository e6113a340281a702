"""The journal: SQLAlchemy tables, the repository over them, migrations, and a fast read-only reader."""
