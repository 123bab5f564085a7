//! A request's body: bounded in size and time.

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_ENCODING;
use tokio::time::timeout;

use super::error::{ApiError, quoted};
use super::settings::HttpSettings;

/// Reads a request's body whole.
///
/// # Cancellation
/// The part that was read is dropped.
pub(super) async fn read(
    request: Request<Incoming>,
    settings: &HttpSettings,
) -> Result<Bytes, ApiError> {
    let bytes_max = settings.body_bytes_max;
    let too_large = ApiError::BodyTooLarge { bytes_max };
    let (head, body) = request.into_parts();
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        return Err(ApiError::Encoding(quoted(&encoding)));
    }
    // Before a byte is read: a client that asks with `Expect: 100-continue` need not send them.
    if usize::try_from(body.size_hint().lower()).is_ok_and(|bytes| bytes > bytes_max) {
        return Err(too_large);
    }
    let body = Limited::new(body, bytes_max).collect();
    match timeout(settings.read_timeout, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a body broke off");
            Err(ApiError::Body("broke off".to_owned()))
        }
        Err(_elapsed) => Err(ApiError::BodyTimeout),
    }
}
