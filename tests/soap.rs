//! The vSphere client with a scripted server.

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
