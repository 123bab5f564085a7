//! Engines before each of whose steps a test is heard.

use std::sync::Arc;

use pointsman_engine::backend::DeviceError;
use pointsman_engine::test_util::stepped::Stepped;
use pointsman_local::Backends;

/// Backends that call `before` on the engine's thread before each of their steps, with the executor's name. A step
/// fails with its error.
pub(crate) fn backends(
    before: impl Fn(&str) -> Result<(), DeviceError> + Send + Sync + 'static,
) -> Backends {
    let before = Arc::new(before);
    Backends::new(move |name, backend| {
        let (name, before) = (name.to_owned(), Arc::clone(&before));
        Box::new(Stepped::new(Box::new(backend), move || before(&name)))
    })
}
