//! Loopback ports that no other run of the lab uses, even while a server restarts.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, bail};

/// The first port. The range ends below the kernel's ephemeral ports (32768 and up), so that no outgoing connection
/// takes a port before the server binds it or while it restarts.
const FIRST: u16 = 20_000;
/// The number of ports.
const COUNT: u16 = 10_000;

/// A port on 127.0.0.1 that other runs do not use while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    // Holds a lock, which the kernel releases when the process ends.
    _lock: File,
}

impl Port {
    /// Finds a port without a listener that no other run has reserved.
    pub fn reserve() -> anyhow::Result<Self> {
        static TURN: AtomicU16 = AtomicU16::new(0);
        let locks = crate::build::cache_dir()?.join("ports");
        std::fs::create_dir_all(&locks)
            .with_context(|| format!("making the directory {}", locks.display()))?;
        // Processes begin at different ports, so that collisions are rare.
        let start = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let turn = TURN.fetch_add(1, Ordering::Relaxed);
            let offset = (u32::from(start) + u32::from(turn)) % u32::from(COUNT);
            let number = FIRST + u16::try_from(offset).unwrap_or(0);
            let path = locks.join(number.to_string());
            let lock = File::create(&path).with_context(|| format!("opening the lock {}", path.display()))?;
            if lock.try_lock().is_err() {
                continue;
            }
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        bail!(
            "found no free port on 127.0.0.1 between {FIRST} and {}",
            FIRST + COUNT - 1
        )
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::Port;

    #[test]
    fn two_reservations_never_share_a_port() {
        let held: Vec<Port> = (0..20).map(|_| Port::reserve().unwrap()).collect();
        let mut numbers: Vec<u16> = held.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), held.len());
    }
}
