//! Embeddings of prompts: the hidden state after the last token, put to length 1.
//!
//! The last token is the only one that has seen the whole prompt, and the only one that is computed whatever of
//! the prompt is cached. ADR 0039 has what spoke for other poolings.

/// Returns a hidden state put to length 1; absent where it has no direction: its numbers are all 0, or one is none.
#[must_use]
pub fn direction(hidden: &[f32]) -> Option<Vec<f32>> {
    let squares = hidden.iter().map(|number| f64::from(*number).powi(2));
    let length = squares.sum::<f64>().sqrt();
    let has_direction = length.is_finite() && length > 0.0;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an embedding has numbers of 32 bits"
    )]
    let put = |number: &f32| (f64::from(*number) / length) as f32;
    has_direction.then(|| hidden.iter().map(put).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_state_is_put_to_length_one() {
        assert_eq!(direction(&[3.0, 0.0, -4.0]), Some(vec![0.6, 0.0, -0.8]));
        assert_eq!(direction(&[f32::MAX, 0.0]), Some(vec![1.0, 0.0]));
    }

    #[test]
    fn what_has_no_direction_is_no_embedding() {
        for hidden in [[0.0, 0.0], [f32::NAN, 1.0], [f32::INFINITY, 1.0]] {
            assert_eq!(direction(&hidden), None);
        }
    }
}
