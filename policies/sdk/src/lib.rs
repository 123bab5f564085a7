//! Write a Pointsman policy: bindings, mirror, settings and export macro.
