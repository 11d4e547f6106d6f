"""The participant for one PostgreSQL database: its prepared transactions are branches (DESIGN T3, T4)."""
