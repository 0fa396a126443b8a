//! One reading of properties: all its pages, within limits, repeated where a session or a connection was gone.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::call::SoapCall;
use super::client::Vcenter;
use super::error::{Error, TransportError};
use super::fault::FaultKind;
use super::moref::Moref;
use super::property::{
    ObjectProperties, Page, PropertySpec, Unreadable, WITHHELD, is_of_dead_session, read_page,
};
use super::session::Session;
use super::soap::ReplyError;
use super::xml::write::XmlWriter;

/// Objects per page. A full page of hosts with all their PCI devices stays well under the parser's limits.
const PAGE: u32 = 50;
/// Most pages of one reading, and most objects: a vCenter registers at most 45,000 VMs, and a page has [`PAGE`] of them at the most.
const MAX_PAGES: usize = 10_000;
pub(super) const MAX_OBJECTS: usize = 200_000;
/// Most bytes of one reading: the largest is a survey of the 96 hosts of a cluster, with 80 VMs each and 16 KiB of devices of each VM.
const MAX_READ: usize = 128 << 20;
/// How many times the deadline of one call a whole reading may take. Every page may be as late as a call may be, and few are.
const CALLS_A_READING: u32 = 10;

/// All pages of one reading.
#[derive(Debug, Default)]
pub(super) struct BoundedRead {
    pub(super) objects: Vec<ObjectProperties>,
    pub(super) unreadable: Vec<Unreadable>,
}

impl BoundedRead {
    /// Whether the object exists: it was read, or could not be.
    pub(super) fn tells_of(&self, moref: &Moref) -> bool {
        let mut unreadable = self.unreadable.iter();
        self.objects.iter().any(|object| object.moref == *moref)
            || unreadable.any(|object| object.moref.as_ref() == Some(moref))
    }
}

impl Vcenter {
    /// Reads once, in whichever session lives, to the last page. A dead session costs one login and one more try, a broken
    /// connection one more try: reading twice is as good as reading once.
    pub(super) async fn retrieve(&self, spec: PropertySpec) -> Result<Vec<ObjectProperties>, Error> {
        Ok(self.retrieve_with_session(spec, PAGE).await?.1)
    }

    /// The same with so many objects per page, and with the session in which it was read.
    pub(super) async fn retrieve_with_session(
        &self,
        spec: PropertySpec,
        page: u32,
    ) -> Result<(Arc<Session>, Vec<ObjectProperties>), Error> {
        let session = self.sessions.get().await?;
        match self.read_whole(&session, spec.clone(), page).await {
            Err(Error::Refused { source, .. }) if source.kind == FaultKind::NotAuthenticated => {}
            Err(Error::Transport {
                source: TransportError::Connection(_),
                ..
            }) => {}
            Ok(objects) => return Ok((session, objects)),
            Err(error) => return Err(error),
        }
        let session = self.sessions.get().await?;
        let objects = self.read_whole(&session, spec, page).await?;
        Ok((session, objects))
    }

    /// Reads once, in this session, to the last page. What cannot be read whole is an error: nobody is to decide by the rest.
    pub(super) async fn retrieve_in(
        &self,
        session: &Session,
        spec: PropertySpec,
    ) -> Result<Vec<ObjectProperties>, Error> {
        self.read_whole(session, spec, PAGE).await
    }

    async fn read_whole(
        &self,
        session: &Session,
        spec: PropertySpec,
        page: u32,
    ) -> Result<Vec<ObjectProperties>, Error> {
        let read = self.retrieve_pages(session, spec, page).await?;
        let Some(broken) = read.unreadable.into_iter().next() else {
            return Ok(read.objects);
        };
        let call = SoapCall::to("RetrievePropertiesEx", &session.content.property_collector);
        let object = broken.moref.map_or_else(
            || "an object without a reference".to_owned(),
            |moref| moref.to_string(),
        );
        let why = broken.why;
        Err(call.unreadable(ReplyError::Object { object, why }))
    }

    /// As [`Self::retrieve_in`], with so many objects per page, and with what cannot be read put aside.
    pub(super) async fn retrieve_pages(
        &self,
        session: &Session,
        spec: PropertySpec,
        page: u32,
    ) -> Result<BoundedRead, Error> {
        let collector = &session.content.property_collector;
        let options = XmlWriter::new("options").with(XmlWriter::text("maxObjects", page.to_string()));
        let first = SoapCall::to("RetrievePropertiesEx", collector)
            .with(spec.render("specSet"))
            .with(options);
        let ask = |call: SoapCall| -> ReadOutcome<'_> {
            Box::pin(async move { self.call_in(session, &call, read_page).await })
        };
        let read = within(self.settings.call_deadline, first.clone(), ask).await?;
        self.unless_dead(session, &first, read)
    }

    fn unless_dead(
        &self,
        session: &Session,
        call: &SoapCall,
        read: BoundedRead,
    ) -> Result<BoundedRead, Error> {
        if !is_of_dead_session(&read.objects) {
            return Ok(read);
        }
        self.sessions.give_up(session.generation);
        Err(call.dead_session(WITHHELD))
    }
}

type ReadOutcome<'a> = Pin<Box<dyn Future<Output = Result<Page, Error>> + Send + 'a>>;

/// Reads all pages, in some times the deadline of one call.
async fn within<'a>(
    call: Duration,
    first: SoapCall,
    ask: impl Fn(SoapCall) -> ReadOutcome<'a>,
) -> Result<BoundedRead, Error> {
    let deadline = call * CALLS_A_READING;
    let (operation, object) = (first.method, first.on.to_string());
    let read = tokio::time::timeout(deadline, all_pages(first, ask)).await;
    read.unwrap_or_else(|_| {
        Err(Error::Transport {
            operation,
            object,
            source: TransportError::Deadline(deadline),
        })
    })
}

/// Asks for one page after the other, to the last one.
async fn all_pages<'a>(
    first: SoapCall,
    ask: impl Fn(SoapCall) -> ReadOutcome<'a>,
) -> Result<BoundedRead, Error> {
    let mut read = BoundedRead::default();
    let mut bytes = 0;
    let mut call = first;
    for _ in 0..MAX_PAGES {
        let page = ask(call.clone()).await?;
        bytes += page.size;
        read.objects.extend(page.objects);
        read.unreadable.extend(page.unreadable);
        let Some(token) = page.token else {
            return Ok(read);
        };
        let objects = read.objects.len() + read.unreadable.len();
        endless(bytes, objects).map_err(|source| call.unreadable(source))?;
        call = SoapCall::to("ContinueRetrievePropertiesEx", &call.on).with(XmlWriter::text("token", token));
    }
    let source = ReplyError::Endless {
        what: "pages",
        limit: MAX_PAGES,
    };
    Err(call.unreadable(source))
}

/// Refuses to read on where there is more of a reading than fits into the limits.
fn endless(bytes: usize, objects: usize) -> Result<(), ReplyError> {
    let (what, limit) = if bytes > MAX_READ {
        ("bytes", MAX_READ)
    } else if objects > MAX_OBJECTS {
        ("objects", MAX_OBJECTS)
    } else {
        return Ok(());
    };
    Err(ReplyError::Endless { what, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a token with each page, for ever.
    fn endless_pages(_: SoapCall) -> ReadOutcome<'static> {
        let token = Some("more".to_owned());
        Box::pin(std::future::ready(Ok(Page {
            token,
            ..Page::default()
        })))
    }

    fn first_page() -> SoapCall {
        SoapCall::to("RetrievePropertiesEx", &Moref::new("PropertyCollector", "pc"))
    }

    #[tokio::test]
    async fn pages_without_an_end_are_given_up() {
        let error = all_pages(first_page(), endless_pages).await.unwrap_err();
        assert!(
            error.chain().contains("no end after 10000 pages"),
            "{}",
            error.chain()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn all_pages_together_have_a_deadline() {
        let slow = |call| -> ReadOutcome<'static> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(29)).await;
                endless_pages(call).await
            })
        };
        let began = tokio::time::Instant::now();
        let error = within(Duration::from_secs(30), first_page(), slow)
            .await
            .unwrap_err();
        assert!(
            error.chain().contains("no whole answer within 300 s"),
            "{}",
            error.chain()
        );
        assert_eq!(began.elapsed(), Duration::from_secs(300));
    }

    #[test]
    fn reading_without_an_end_is_given_up() {
        assert_eq!(endless(MAX_READ, MAX_OBJECTS), Ok(()));
        for (bytes, objects, what) in [(MAX_READ + 1, 0, "bytes"), (0, MAX_OBJECTS + 1, "objects")] {
            let error = endless(bytes, objects).unwrap_err();
            assert!(error.to_string().ends_with(what), "{error}");
        }
    }
}
