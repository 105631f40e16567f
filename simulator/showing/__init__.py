"""What people see: terminal tables, report folders, pictures."""
