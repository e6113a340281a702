"""The database itself: tables, types of columns, connections, migrations, health."""
