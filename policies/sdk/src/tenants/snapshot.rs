//! The accounts as bytes, for a fresh instance.

use super::{Account, Tenants};
use crate::LastMinute;
use crate::snapshot::{take, take_u32, take_u64};

/// Bytes of one account: its tenant's id, five counters, and the bucket.
const ENTRY_BYTES: usize = 4 + 5 * 8 + 16;

impl Tenants {
    /// The accounts as bytes, for [`Tenants::restore`].
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.accounts.len() * ENTRY_BYTES);
        for (tenant, account) in &self.accounts {
            bytes.extend(tenant.to_le_bytes());
            bytes.extend(account.total.to_le_bytes());
            bytes.extend(account.seen.to_le_bytes());
            account.served.put(&mut bytes);
            bytes.extend(account.spent.to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes that [`Tenants::snapshot`] made.
    ///
    /// # Errors
    ///
    /// A sentence about a length that it cannot have made.
    pub fn restore(bytes: &[u8]) -> Result<Self, String> {
        let mut accounts = std::collections::BTreeMap::new();
        let mut left = bytes;
        while !left.is_empty() {
            let entry = entry(&mut left).ok_or_else(|| {
                let bytes = bytes.len();
                format!("a snapshot of {bytes} bytes is no multiple of {ENTRY_BYTES}")
            })?;
            accounts.extend([entry]);
        }
        Ok(Self { accounts })
    }
}

/// Takes off the first entry.
fn entry(left: &mut &[u8]) -> Option<(u32, Account)> {
    let tenant = take_u32(left)?;
    let account = Account {
        total: take_u64(left)?,
        seen: take_u64(left)?,
        served: LastMinute::taken(left)?,
        spent: u128::from_le_bytes(take(left)?),
    };
    Some((tenant, account))
}
