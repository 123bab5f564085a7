//! A host against files that were made to harm it.
//!
//! The files are made by code, and the limits are small, so that each is met in a moment. Every
//! attack is on a process of its own: one that is brought down shows as a failed test.

mod clients;
mod compiler;
mod names;
