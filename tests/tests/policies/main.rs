//! Policies in the policy host, without a server: the shipped ones, hostile ones, canaries and shadows.

mod canary;
mod containment;
mod defaults;
mod hostile;
mod mirror;
mod shadow;
