//! Waits for a condition with a timeout.

use std::time::Duration;

use anyhow::anyhow;
use tokio::time::Instant;

/// The poll interval.
const PAUSE: Duration = Duration::from_millis(25);

/// Polls `look` until it returns `Some`. An error counts as "not yet", because a starting server refuses connections.
/// After `patience`, the error names `what` and the last error.
pub async fn until<T>(
    what: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + patience;
    let mut last = anyhow!("the answer was: not yet");
    loop {
        match tokio::time::timeout_at(deadline, look()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last = anyhow!("the answer was: not yet"),
            Ok(Err(error)) => last = error,
            Err(_) => {
                return Err(last.context(format!(
                    "waited {patience:?} for {what}; the last look never ended"
                )));
            }
        }
        if Instant::now() + PAUSE > deadline {
            return Err(last.context(format!("waited {patience:?} for {what}")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::until;

    #[tokio::test]
    async fn the_error_says_what_was_waited_for_and_what_was_seen() {
        let never = until(
            "the moon",
            Duration::from_millis(60),
            async || -> anyhow::Result<Option<()>> { anyhow::bail!("clouds") },
        );
        let error = format!("{:#}", never.await.unwrap_err());
        assert_eq!(error, "waited 60ms for the moon: clouds");
    }

    #[tokio::test]
    async fn a_later_look_may_succeed() {
        let mut looks = 0;
        let seen = until("the third look", Duration::from_secs(5), async || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(seen.await.unwrap(), 3);
    }
}
