//! Admission, token budgets per engine, and who gives way.
