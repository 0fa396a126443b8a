//! The table of waits.

/// Makes `WaitingOn`, with a variant for each entry, and `WaitKind`, with its kind.
macro_rules! waits {
    (
        kind $Kind:ident = $kind_name:literal, $kind_words:literal, runbook $kind_book:literal;
        $($Name:ident $(($inner:ident: $Inner:ty))? $({ $($field:ident: $Type:ty),+ })? = $name:literal, $words:literal,
            says($($says:tt)*)
            $(, needs $who:ident)? $(, runbook $book:literal)? $(, ends $ends:expr)? $(, next |$node:ident| $next:expr)?;)+
    ) => {
        /// What a node is waiting for. The text follows "waiting for"; `Error` is derived for its `Display`.
        #[derive(Clone, Debug, PartialEq, Error)]
        pub enum WaitingOn {
            $(#[error($($says)*)] $Name $(($Inner))? $({ $($field: $Type),+ })?),+
        }

        named_enum! {
            /// What a node waits for.
            pub enum WaitKind { $($Name = $name,)+ $Kind = $kind_name }
        }

        impl WaitKind {
            /// The wait in words that follow "waits for".
            pub fn words(self) -> &'static str {
                match self { $(Self::$Name => $words,)+ Self::$Kind => $kind_words }
            }

            /// The maintenance goes on only after a person acts.
            pub fn needs_person(self) -> bool {
                let who: &[&str] = match self { $(Self::$Name => &[$(stringify!($who))?],)+ Self::$Kind => &[] };
                !who.is_empty()
            }

            /// The runbook of the alert about such a wait, by its name in `docs/runbooks`.
            pub fn runbook(self) -> Option<&'static str> {
                match self { $(Self::$Name => None$(.or(Some($book)))?,)+ Self::$Kind => Some($kind_book) }
            }
        }

        #[expect(unused_variables, reason = "an entry uses some of its fields")]
        impl WaitingOn {
            fn kind_of_entry(&self) -> WaitKind {
                match self { $(Self::$Name { .. } => WaitKind::$Name),+ }
            }

            /// When the wait ends by itself, and what happens then.
            pub fn deadline(&self) -> Option<WaitDeadline> {
                match self { $(Self::$Name $(($inner))? $({ $($field),+ })? => None$(.or($ends))?),+ }
            }

            /// What a person can do about it on `node`; `None` where it ends by itself or has its reason elsewhere.
            pub fn next_step(&self, node: &NodeName) -> Option<String> {
                match self {
                    $(Self::$Name $(($inner))? $({ $($field),+ })? => None$(.or({ let $node = node; $next }))?),+
                }
            }
        }
    };
}
