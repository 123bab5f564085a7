//! Scenarios and property checks for a policy, native or as a component; no server, no device.
