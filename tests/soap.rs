//! The client against a server that answers what the test says.

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
