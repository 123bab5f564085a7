//! The return of an input: the id of a new thing, or the reason of a refusal.

use pointsman_interface::{DeviceId, ExecutorId, RequestId};

/// The return of `Machine::handle`, by the kind of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Nothing: all that came of the input are effects and facts.
    Done,
    /// The id of a name, among the names of its kind.
    Name(u32),
    /// A new device.
    Device(DeviceId),
    /// A new executor.
    Executor(ExecutorId),
    /// A new request.
    Request(RequestId),
    /// A refusal: nothing was changed.
    Refused(AttachError),
}

/// The reason for which a device or an executor cannot be attached, or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Another device or executor has that name.
    #[error("{0:?} is attached already")]
    NameTaken(String),
    /// The number of executors has reached the configured bound.
    #[error("{0} executors are attached, which is executors-max")]
    TooMany(u32),
    /// An executor on a device that was never attached.
    #[error("device {0} is not attached")]
    UnknownDevice(DeviceId),
    /// An executor without slots could never run anything.
    #[error("slots-total must be at least 1")]
    NoSlots,
    /// An executor that takes its blocks from the device's pool must say how many tokens of its
    /// model a block holds.
    #[error("an executor on a device with KV blocks must set tokens-per-block to at least 1")]
    NoTokensPerBlock,
    /// Each running sequence must get a token in each step.
    #[error("{slots} slots on a device that schedules {tokens_per_step} tokens in a step")]
    TooFewTokens {
        /// Slots of all executors on the device, the new one's included.
        slots: u64,
        /// The device's tokens per step.
        tokens_per_step: u32,
    },
}

impl Handled {
    /// The id of the interned name.
    ///
    /// # Panics
    /// If the input was no name, or the name of a device or an executor.
    #[must_use]
    pub fn name(self) -> u32 {
        let Handled::Name(id) = self else {
            panic!("an input about a name gives {self:?}");
        };
        id
    }

    /// The id of the request that arrived.
    ///
    /// # Panics
    /// If the input was not a request that arrived.
    #[must_use]
    pub fn request(self) -> RequestId {
        let Handled::Request(id) = self else {
            panic!("an arrival gives {self:?}");
        };
        id
    }

    /// The id of the attached device.
    ///
    /// # Errors
    /// The reason for which it was refused.
    ///
    /// # Panics
    /// If the input was not a device.
    pub fn device(self) -> Result<DeviceId, AttachError> {
        let device = if let Handled::Device(id) = self {
            Some(id)
        } else {
            None
        };
        self.attached(device)
    }

    /// The id of the attached executor.
    ///
    /// # Errors
    /// The reason for which it was refused.
    ///
    /// # Panics
    /// If the input was not an executor.
    pub fn executor(self) -> Result<ExecutorId, AttachError> {
        let executor = if let Handled::Executor(id) = self {
            Some(id)
        } else {
            None
        };
        self.attached(executor)
    }

    fn attached<T>(self, id: Option<T>) -> Result<T, AttachError> {
        if let Handled::Refused(why) = self {
            return Err(why);
        }
        Ok(id.expect("an attachment gives an id of its kind, or is refused"))
    }
}
