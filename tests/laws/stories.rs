//! Random stories: a person, a vCenter and a kubelet do what they like; then they stop, and the laws say how it ends.
