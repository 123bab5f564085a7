//! The accounts as bytes, little-endian: the tenant that waited last, then each tenant.
//!
//! A flag is one byte: whether a last tenant follows, or whether a tenant waits.

use std::collections::BTreeMap;

use pointsman_sdk::snapshot;

use crate::accounts::{Account, Accounts};
use crate::settings::Costs;

/// A flag, and the last tenant that waited.
const HEADER_BYTES: usize = 5;
/// Tenant, weight, both costs, a flag, lift.
const ENTRY_BYTES: usize = 33;

pub(crate) fn write(accounts: &Accounts) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + accounts.tenants.len() * ENTRY_BYTES);
    bytes.push(u8::from(accounts.last.is_some()));
    bytes.extend(accounts.last.unwrap_or(0).to_le_bytes());
    for (tenant, account) in &accounts.tenants {
        bytes.extend(tenant.to_le_bytes());
        bytes.extend(account.weight.to_le_bytes());
        bytes.extend(account.costs.prompt_token.to_le_bytes());
        bytes.extend(account.costs.output_token.to_le_bytes());
        bytes.push(u8::from(account.waits));
        bytes.extend(account.lift.to_le_bytes());
    }
    bytes
}

/// Reads the bytes that [`write`] made.
///
/// # Errors
///
/// A sentence about bytes that it did not make.
pub(crate) fn read(bytes: &[u8]) -> Result<Accounts, String> {
    let mut rest = bytes;
    let last = flag(&mut rest)?;
    let tenant = u32::from_le_bytes(take(&mut rest)?);
    let mut tenants = BTreeMap::new();
    while !rest.is_empty() {
        let tenant = u32::from_le_bytes(take(&mut rest)?);
        let account = Account {
            weight: u32::from_le_bytes(take(&mut rest)?),
            costs: Costs {
                prompt_token: u32::from_le_bytes(take(&mut rest)?),
                output_token: u32::from_le_bytes(take(&mut rest)?),
            },
            waits: flag(&mut rest)?,
            lift: i128::from_le_bytes(take(&mut rest)?),
        };
        tenants.insert(tenant, account);
    }
    Ok(Accounts {
        tenants,
        last: last.then_some(tenant),
    })
}

fn flag(rest: &mut &[u8]) -> Result<bool, String> {
    match take(rest)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(format!("a snapshot says {other} where 0 or 1 belongs")),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let left = rest.len();
    snapshot::take(rest).ok_or_else(|| format!("a snapshot ends {} bytes early", N - left))
}
