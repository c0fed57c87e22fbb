//! The admin queue of a controller that wants to know who asks.

use super::{Client, ClientError, Payload, Reason};
use association::{Authentication, AuthenticationCommand, Credentials, Next};
use nvme::Status;
use nvme::fabrics::ConnectResult;

const DOING: &str = "authentication";

impl Client {
    /// Proves who asks, if Connect's `result` demands it; nobody else waits on this thread, so that it computes as well.
    pub(super) fn authenticate(
        &mut self,
        credentials: Option<&Credentials>,
        result: ConnectResult,
    ) -> Result<(), ClientError> {
        let begun = Authentication::begin(credentials, 0, result);
        let begun = begun.map_err(|reason| self.failed(DOING, reason.into()))?;
        let Some((mut authentication, mut command)) = begun else { return Ok(()) };
        loop {
            let data = self.exchange(command)?;
            let mut next = authentication.answered(Status::SUCCESS, &data);
            if let Next::Compute(work) = next {
                next = authentication.computed(work.run());
            }
            match next {
                Next::Command(another) => command = another,
                Next::Proven => return Ok(()),
                Next::Compute(_) => unreachable!("it was done"),
                Next::Failed(reason, last) => {
                    // Whether it hears that does not matter any more.
                    let _ = last.map(|last| self.exchange(last));
                    return Err(self.failed(DOING, reason.into()));
                }
            }
        }
    }

    /// Carries out an Authentication Send, or a Receive, whose message it gives.
    fn exchange(&mut self, command: AuthenticationCommand) -> Result<Vec<u8>, ClientError> {
        let AuthenticationCommand { command, data, answer_bytes } = command;
        let mut answer = vec![0; answer_bytes as usize];
        if answer.is_empty() {
            self.execute(command, Payload::Send(&data), DOING)?;
        } else {
            self.execute(command, Payload::ReceiveUpTo(&mut answer), DOING)?;
        }
        Ok(answer)
    }
}

impl From<association::Reason> for Reason {
    fn from(reason: association::Reason) -> Reason {
        Reason::Authentication(Box::new(reason))
    }
}
