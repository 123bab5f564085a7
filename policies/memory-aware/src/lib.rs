//! Routing by KV pressure, load and warm models.
