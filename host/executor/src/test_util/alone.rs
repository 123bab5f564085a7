//! The answer of a sequence that is alone: the plainest loop there is, with text made at the end.

use crate::delivery::StopReason;
use crate::job::Job;
use crate::text::Detokenizer;

/// The whole answer to a job.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeAnswer {
    /// Token ids generated.
    pub ids: Vec<u32>,
    /// Text that the client is to be shown.
    pub text: String,
    /// The reason why the answer ends.
    pub stop: StopReason,
    /// The embedding of the prompt; absent: text was ordered.
    pub embedding: Option<Vec<f32>>,
}

impl WholeAnswer {
    /// The answer to a job whose prompt is embedded.
    pub fn embedded(numbers: Vec<f32>) -> Self {
        Self {
            ids: Vec::new(),
            text: String::new(),
            stop: StopReason::Stop,
            embedding: Some(numbers),
        }
    }
}

/// Returns the answer to `job`, in a context of `context_tokens`, where `next` chooses each token
/// by the tokens before it.
pub fn answer_alone(
    job: &Job,
    text: &dyn Detokenizer,
    context_tokens: u32,
    mut next: impl FnMut(&[u32]) -> u32,
) -> WholeAnswer {
    let mut tokens = job.prompt.clone();
    let room = context_tokens as usize - job.prompt.len();
    let ids_max = room.clamp(1, job.output_tokens_max as usize);
    loop {
        tokens.push(next(&tokens));
        if let Some(answer) = ended(text, job, &tokens[job.prompt.len()..], ids_max) {
            return answer;
        }
    }
}

/// Returns the answer, if generation ends with the last of `ids`.
fn ended(text: &dyn Detokenizer, job: &Job, ids: &[u32], ids_max: usize) -> Option<WholeAnswer> {
    let is_last = ids.len() == ids_max;
    let (last, before) = ids.split_last()?;
    let is_eos = !job.ignore_eos && text.eos().contains(last);
    let shown = text.decode(if is_eos { before } else { ids }).unwrap();
    let answer = |text: &str, stop| WholeAnswer {
        ids: ids.to_vec(),
        text: text.to_owned(),
        stop,
        embedding: None,
    };
    let may_change = shown.ends_with(char::REPLACEMENT_CHARACTER) && !is_last && !is_eos;
    if let Some(cut) = first_stop(&shown, &job.stop)
        && !may_change
    {
        return Some(answer(&shown[..cut], StopReason::Stop));
    }
    match (is_eos, is_last) {
        (true, _) => Some(answer(&shown, StopReason::Stop)),
        (false, true) => Some(answer(&shown, StopReason::Length)),
        (false, false) => None,
    }
}

/// Returns the byte at which the stop string that ends first begins, found byte by byte; the
/// longest of several.
pub fn first_stop(text: &str, stop: &[String]) -> Option<usize> {
    (1..=text.len()).find_map(|end| {
        let ends_here = stop
            .iter()
            .filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        ends_here.map(|stop| end - stop.len()).min()
    })
}
