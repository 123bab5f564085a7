//! A page that stays open: what its reader does meanwhile, and what becomes of its server.

use anyhow::{Result, ensure};
use pointsman_tests::browser::{ColorScheme, Used, used};
use pointsman_tests::serving::Serving;

use super::{UNTIL, settled, text};

/// The elements of the page of a server that has served a request, after a script has used it.
async fn after(script: &str) -> Result<String> {
    let serving = Serving::start(|_| {}).await?;
    serving.client.chat("Hello").await?.text()?;
    serving.idle().await?;
    settled(&serving).await?;
    let script = format!("{UNTIL}{script}");
    let page = Used {
        path: "/monitor",
        width: 1280,
        scheme: ColorScheme::Light,
        script: &script,
    };
    let dom = used(serving.server.addr(), page).await?;
    serving.server.stop().await?;
    Ok(dom)
}

/// Has a second pass between any two answers, in whose minutes some requests were not served, and opens a
/// menu.
const RIGHT_CLICK: &str = "const heard = window.fetch;
let polls = 0;
window.fetch = async (path, options) => {
  const data = await (await heard(path, options)).json();
  polls += 1;
  data.at_micros += polls * 1e6;
  for (const minute of data.minutes) Object.assign(minute, { finished: 3, unserved: 4 });
  return new Response(JSON.stringify(data));
};
until(() => document.body.dataset.at, (at) => {
  dispatchEvent(new PointerEvent('pointerdown', { button: 2 }));
  until(() => document.body.dataset.at !== at, () => { document.body.dataset.goes = 'on'; });
});";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_goes_on_behind_a_menu_and_tells_those_that_were_served() -> Result<()> {
    let dom = after(RIGHT_CLICK).await?;
    ensure!(dom.contains("data-goes=\"on\""), "{dom}");
    ensure!(text(&dom, "id=\"finished-peak\"")? == "up to 3", "{dom}");
    Ok(())
}

/// Has the first question about a request fail, and the server begin anew once the second is answered.
const FAILURE: &str = "const heard = window.fetch;
let asked = 0, anew = false;
window.fetch = async (path, options) => {
  if (path.startsWith('/admin/decisions/')) {
    asked += 1;
    if (asked === 1) throw new Error('not heard');
  }
  const answer = await heard(path, options);
  if (path !== '/monitor/data' || !anew) return answer;
  const data = await answer.json();
  data.at_micros = data.policies.at_micros = 1;
  return new Response(JSON.stringify(data));
};
const told = (words) => () =>
  [...document.querySelectorAll('#requests ol li')].find((it) => it.textContent.includes(words));
until(() => document.querySelector('[data-ended] summary'), (summary) => {
  summary.click();
  until(told('not heard'), () => until(told('admission: '), () => {
    anew = true;
    until(() => document.body.dataset.at === '1', () => {
      document.body.dataset.unfolded = document.querySelectorAll('#requests ol').length;
    });
  }));
});";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_were_not_heard_are_asked_for_again_and_a_new_server_has_others() -> Result<()> {
    let dom = after(FAILURE).await?;
    ensure!(dom.contains("data-unfolded=\"0\""), "{dom}");
    Ok(())
}
