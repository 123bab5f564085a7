//! The trait that every policy implements: [`Policy`]. Those of its decisions are in `hooks`.

use serde::de::DeserializeOwned;

use crate::index::ExecutorIndex;
use crate::mirror::Mirror;
use crate::needs::Description;
use crate::wire::lifecycle::Setting;
use crate::wire::types::Change;

/// A policy: its name, settings and state.
pub trait Policy: Sized + Send + 'static {
    /// The operator's settings. Derive `Deserialize` with `deny_unknown_fields` and `default`: a
    /// misspelt key is then an error that lists the known ones.
    type Settings: DeserializeOwned;

    /// Name, version and reasons of the policy.
    fn describe() -> Description;

    /// The settings, for people and for tools: meaning, values and default of each. `configure`
    /// refuses a number that is out of its range here, before [`new`](Self::new) is called.
    /// `fixture::check_settings` is the test that they are those of [`Settings`](Self::Settings).
    #[must_use]
    fn settings() -> Vec<Setting> {
        Vec::new()
    }

    /// Makes a policy with these settings.
    ///
    /// # Errors
    ///
    /// A sentence for the operator about the setting that is wrong.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// State worth carrying over a reload or a fault. Not the mirror.
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over a snapshot.
    ///
    /// # Errors
    ///
    /// A sentence about the bytes that are of no use; the policy then starts without state.
    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let _ = state;
        Ok(())
    }

    /// The index of executors that the SDK keeps up to date, where the policy has one.
    #[inline]
    fn index(&mut self) -> Option<&mut dyn ExecutorIndex> {
        None
    }

    /// Forgets all rows: the mirror was cleared, and everything follows. For a policy that keeps
    /// counts of other rows than executors.
    fn cleared(&mut self) {}

    /// Takes note of a row that is about to change. `mirror` still holds the row that `change`
    /// replaces or removes. For a policy that keeps such counts, or learns from completions.
    #[inline]
    fn changed(&mut self, mirror: &Mirror, change: &Change) {
        let _ = (mirror, change);
    }

    /// Takes note of all rows of one `observe`, which are in the mirror and the index. Work that
    /// grows with the fleet belongs here: an `observe` has fuel for each row, a question only for
    /// the requests it names.
    #[inline]
    fn observed(&mut self, mirror: &Mirror) {
        let _ = mirror;
    }
}
