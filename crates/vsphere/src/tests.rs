//! Tests of what is read: captures, hostile replies, and the entries of the fuzz targets.

mod as_recorded;
mod captures;
mod corpus;
mod hostile;
mod placement;
mod survey;
