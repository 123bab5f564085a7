//! Headless Chromium, or Chrome: a page as it is shown, and as a script of the test uses it.

use std::ffi::OsString;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::PATIENCE;
use crate::client::Client;

/// The variable by which `cargo xtask test` tells of the browser's program.
const BROWSER: &str = "POINTSMAN_TEST_BROWSER";

/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A page of a server that is used.
#[derive(Clone, Copy, Debug)]
pub struct Used<'a> {
    /// The path of the page.
    pub path: &'static str,
    /// The width in which the page is shown, in pixels.
    pub width: u32,
    /// The colours that the reader wants.
    pub scheme: ColorScheme,
    /// JavaScript at the end of the page.
    pub script: &'a str,
}

/// The colours in which a reader wants pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorScheme {
    /// Dark text on a light page.
    Light,
    /// The other way round.
    Dark,
}

/// The page's elements after its scripts have run for a few seconds.
///
/// # Errors
/// If there is no browser, or it does not show the page.
pub async fn shown(url: &str) -> Result<String> {
    shown_in(ColorScheme::Light, url).await
}

async fn shown_in(scheme: ColorScheme, url: &str) -> Result<String> {
    // The browser's numbers of the two.
    let scheme = match scheme {
        ColorScheme::Light => 1,
        ColorScheme::Dark => 0,
    };
    let profile = tempfile::tempdir()?;
    let mut browser = Command::new(program());
    browser
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--disable-background-networking",
            "--no-first-run",
            "--disable-extensions",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .args(["--virtual-time-budget=4000", "--dump-dom"])
        .arg(url)
        .kill_on_drop(true);
    let output = timeout(PATIENCE, browser.output()).await;
    let output = output.context("the browser hangs")?;
    let output =
        output.context("no browser: run `cargo xtask test`, which finds or installs one")?;
    let dom = String::from_utf8(output.stdout)?;
    let complained = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() && dom.contains("</html>"),
        "{dom}\n{complained}"
    );
    Ok(dom)
}

/// The browser's program.
fn program() -> OsString {
    std::env::var_os(BROWSER).unwrap_or_else(|| "chromium".into())
}

/// The elements of a page of `server` after a script has used it for a few seconds. What the page and the
/// script ask for, the server answers.
///
/// The page is shown in a frame, since a window cannot be as narrow as a phone: the one rule of the page's
/// security policy that is not kept is that nobody frames it.
///
/// # Errors
/// If there is no browser, or it does not show the page.
pub async fn used(server: SocketAddr, used: Used<'_>) -> Result<String> {
    let answer = Client::new(server).get(used.path).await?;
    let policy = answer.header("content-security-policy");
    let policy = policy.replace("frame-ancestors 'none'", "frame-ancestors 'self'");
    let page = String::from_utf8(answer.body)?;
    let (page, end) = page.rsplit_once("</body>").context("the page has no end")?;
    let page = format!(
        "{page}<script>{}\n{TELL_FRAME}</script></body>{end}",
        used.script
    );
    let frame = format!(
        "<!doctype html><html><body><iframe src=\"{}\" style=\"width:{}px;height:3000px;border:0\"></iframe>\
         <div id=\"seen\"></div></body></html>",
        used.path, used.width
    );
    let door = Door {
        server,
        pages: [
            ("GET /frame ".to_owned(), response("", &frame)),
            (format!("GET {} ", used.path), response(&policy, &page)),
        ],
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/frame", listener.local_addr()?);
    let mut open = JoinSet::new();
    open.spawn(door.keep(listener));
    shown_in(used.scheme, &url).await
}

/// Has the frame show the elements of the page in it, which are no elements of its own.
const TELL_FRAME: &str = "setInterval(() => {
  const seen = document.body.outerHTML.replace('<body', '<article');
  parent.document.getElementById('seen').innerHTML = seen;
}, 100);";

fn response(policy: &str, page: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\nconnection: close\r\n\
         content-security-policy: {policy}\r\ncontent-length: {}\r\n\r\n{page}",
        page.len()
    )
}

/// A door to a server, which gives out two pages of its own.
#[derive(Clone, Debug)]
struct Door {
    server: SocketAddr,
    /// The beginnings of requests for the pages, and the responses with them.
    pages: [(String, String); 2],
}

impl Door {
    /// Serves connections until it is dropped.
    async fn keep(self, listener: TcpListener) {
        let mut open = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            open.spawn(self.clone().pass(socket));
        }
    }

    async fn pass(self, mut socket: TcpStream) -> Result<()> {
        let mut head = vec![0; HEAD_BYTES_MAX];
        let read = socket.read(&mut head).await?;
        head.truncate(read);
        let mut pages = self.pages.iter();
        if let Some((_, page)) = pages.find(|(opening, _)| head.starts_with(opening.as_bytes())) {
            socket.write_all(page.as_bytes()).await?;
            return Ok(());
        }
        let mut server = TcpStream::connect(self.server).await?;
        server.write_all(&head).await?;
        copy_bidirectional(&mut socket, &mut server).await?;
        Ok(())
    }
}
