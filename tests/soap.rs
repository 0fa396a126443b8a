//! What a vCenter answers, well-formed and hostile, and what the client makes of it.

#[cfg(test)]
mod soap {
    mod bounds;
    mod captures;
    mod history;
    mod hostile;
    mod orphans;
    mod power;
    mod server;
    mod sessions;
    mod stream;
    mod survey;
    mod tasks;
}
