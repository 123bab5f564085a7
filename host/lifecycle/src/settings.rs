//! The settings of the policy folder and of the policies.

use std::path::PathBuf;
use std::time::Duration;

use pointsman_component::Limits;
use pointsman_interface::Hook;
use pointsman_policy::Probation;
use serde_json::{Map, Value};

/// The settings of the policy folder and of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleSettings {
    /// The folder watched for `*.wasm`. Default `./policies.d`, if that exists at start.
    pub folder: Option<PathBuf>,
    /// The time for which a file must stay as it is before it is read. Default 200 ms.
    pub settle: Duration,
    /// The time after which the folder is listed although nothing was noticed. Default 2 s.
    pub poll: Duration,
    /// Hooks bound to a policy by name.
    pub bind: Vec<(Hook, String)>,
    /// Settings of the embedded policies and of files without a sidecar, by policy name.
    pub settings: Vec<(String, Map<String, Value>)>,
    /// The most that a policy may use.
    pub limits: Limits,
    /// The terms on which a new version counts as good.
    pub probation: Probation,
}

impl Default for LifecycleSettings {
    fn default() -> Self {
        Self {
            folder: None,
            settle: Duration::from_millis(200),
            poll: Duration::from_secs(2),
            bind: Vec::new(),
            settings: Vec::new(),
            limits: Limits::default(),
            probation: Probation::default(),
        }
    }
}
