//! The vSphere client with a scripted server.

#![allow(unreachable_pub, reason = "a test is used by no other crate")]

#[cfg(test)]
mod soap {
    mod bounds;
    mod history;
    mod orphans;
    mod power;
    mod server;
    mod sessions;
    mod stream;
    mod tasks;
}
