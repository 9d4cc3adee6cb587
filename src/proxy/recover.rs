//! What becomes of requests that a node did not run, or that lost their connection; and time.
//!
//! `route` decides; this acts. Not here: backends' lives (`connect`).

use super::launch::{Bytes, is_redirect};
use super::local::errors;
use super::request::{Marks, State};
use super::route::{self, AfterLoss, Facts, Loss, Next};
use super::types::{Action, NONE, Report};
use super::{Proxy, Wait};
use crate::cluster::{Endpoint, redirect_endpoint};
use crate::resp::reply::{ErrorKind, classify_error, parse_redirect};

/// How long an unknown redirect target may take to be confirmed.
const CONFIRM_BUDGET_MS: u64 = 1_500;

/// How long one waits that may not be sent again yet, at least.
const NO_LEAVE_MS: u64 = 15;

/// They look again at multiples of this, together: a hundred of them would else keep the reactor
/// awake all the time.
const NO_LEAVE_STEP_MS: u64 = 10;

/// Why waiting legs may look again.
pub(super) enum News<'a> {
    Time,
    Map,
    /// A refresh has ended.
    Refreshed,
    /// The map has been asked again since a redirect named this place.
    Confirmed(&'a Endpoint),
}

impl Proxy {
    /// The head of backend `b` was answered with an error that routing has to look at.
    pub(super) fn handle_error_reply(&mut self, b: u32, r: u32, line: &[u8]) {
        if self.requests[r].client == NONE {
            self.note_refused_step(r, line);
            self.backends[b as usize].pop(&mut self.requests);
            return self.complete(r, line);
        }
        if self.is_at_node(r) || self.is_sync_leg(r) {
            self.backends[b as usize].pop(&mut self.requests);
            return self.complete(r, line);
        }
        if self.requests[r].marks.has(Marks::PRIVATE) {
            self.renew(r);
            if self.exec_lost_its_guard(r, line) {
                self.backends[b as usize].pop(&mut self.requests);
                return self.answer_unguarded(r);
            }
        }
        let cause = self.cause_of_abort(r, line);
        self.note_resharding(r, cause.as_deref().unwrap_or(line));
        let next = self.decide(r, cause.as_deref().unwrap_or(line));
        if next == Next::Answer {
            self.forget_refusals(r, line);
            self.backends[b as usize].pop(&mut self.requests);
            return self.complete(r, line);
        }
        let line = cause.as_deref().unwrap_or(line);
        let entry = &self.requests[r];
        let bytes = self.backends[b as usize].bytes_of(entry.start, entry.len);
        self.backends[b as usize].pop(&mut self.requests);
        self.mark_irregular(r);
        let Some(bytes) = bytes else {
            return self.await_bytes(b, r, line);
        };
        self.act(r, next, line, bytes);
    }

    /// The kernel still has its bytes: they come back with the send that they are part of.
    pub(super) fn await_bytes(&mut self, b: u32, r: u32, line: &[u8]) {
        self.requests.set_reply(r, line);
        self.requests[r].state = State::Waiting;
        self.put_among_awaiting(b, r);
    }

    /// It is in no FIFO: its place stands there, so that nobody has to look for it among thousands.
    fn put_among_awaiting(&mut self, b: u32, r: u32) {
        let awaiting = &mut self.backends[b as usize].awaiting;
        self.requests[r].next_in_backend = awaiting.len() as u32;
        awaiting.push(r);
    }

    /// A send has come back: requests that were refused before it did can be repeated now.
    pub(super) fn revisit_awaiting(&mut self, b: u32) {
        let awaiting = std::mem::take(&mut self.backends[b as usize].awaiting);
        for r in awaiting {
            let entry = &mut self.requests[r];
            if entry.state != State::Waiting || entry.backend != b {
                // An earlier one's end has closed their client.
                continue;
            }
            let (start, len) = (entry.start, entry.len);
            let line = self.requests.take_reply(r);
            match self.backends[b as usize].bytes_of(start, len) {
                Some(bytes) => {
                    let next = self.decide(r, &line);
                    self.act(r, next, &line, bytes);
                }
                None => {
                    self.requests.set_reply(r, &line);
                    self.put_among_awaiting(b, r);
                }
            }
        }
    }

    /// The client of `r` has left while `r` awaited its own bytes.
    pub(super) fn forget_awaiting(&mut self, r: u32) {
        let entry = &self.requests[r];
        let place = entry.next_in_backend;
        let Some(backend) = self.backends.get_mut(entry.backend as usize) else { return };
        if backend.awaiting.get(place as usize) != Some(&r) {
            return;
        }
        // The order in which they look again says nothing: elders are let go first (`launch`).
        backend.awaiting.swap_remove(place as usize);
        if let Some(&moved) = backend.awaiting.get(place as usize) {
            self.requests[moved].next_in_backend = place;
        }
    }

    pub(super) fn decide(&self, r: u32, line: &[u8]) -> Next {
        let entry = &self.requests[r];
        route::after_error(&Facts {
            kind: classify_error(line),
            fenced: entry.marks.speaks_for_itself(),
            healable: self.may_heal(r, line),
            target_known: self.redirect_target(r, line).map(|(_, node)| node.is_some()),
            confirmed: entry.marks.has(Marks::CONFIRMING),
            divisible: entry.marks.has(Marks::DIVISIBLE),
            redirects: entry.redirects,
            redirects_max: self.settings.redirects_max,
            waits: entry.waits,
            age_ms: self.age_ms(r),
            budget_ms: self.settings.request_timeout_ms,
        })
    }

    /// The endpoint that a redirect names, and the node that it is, if the map knows it.
    fn redirect_target(&self, r: u32, line: &[u8]) -> Option<(Endpoint, Option<u16>)> {
        let (_, raw) = parse_redirect(line)?;
        let asked = &self.nodes[self.requests[r].node].endpoint.host;
        let endpoint = redirect_endpoint(raw, asked)?;
        let node = self.nodes.by_endpoint(&self.settings.address_map.apply(&endpoint));
        Some((endpoint, node))
    }

    /// Does what was decided. `r` is in no FIFO; `bytes` are its own.
    pub(super) fn act(&mut self, r: u32, next: Next, line: &[u8], bytes: Vec<u8>) {
        self.requests[r].marks.unset(Marks::CONFIRMING);
        match next {
            Next::Answer => {
                self.forget_refusals(r, line);
                self.complete(r, line);
            }
            Next::Exhausted => self.fail(r, errors::too_many_redirects),
            Next::Follow => {
                match self.requests[r].marks.speaks_for_itself() {
                    true => self.follow_alone(r, line),
                    false => self.follow(r, line),
                }
                self.launch_led(r, line, bytes);
            }
            Next::Ask => {
                if let Some((_, Some(node))) = self.redirect_target(r, line) {
                    let entry = &mut self.requests[r];
                    entry.node = node;
                    entry.marks.set(Marks::ASKING);
                    entry.redirects += 1;
                    self.tally.redirects_ask += 1;
                }
                self.launch_led(r, line, bytes);
            }
            Next::Confirm => self.confirm(r, line, bytes),
            Next::Wait { ms, refresh } => {
                if refresh {
                    self.actions.push(Action::Report(Report::WantRefresh));
                }
                let jitter = self.random() % (ms / 2 + 1);
                let entry = &mut self.requests[r];
                entry.waits = entry.waits.saturating_add(1);
                // Waits are counted by themselves. While a slot moves, each try of several keys
                // that neither node has costs one more redirect: ASK here, TRYAGAIN there.
                entry.redirects = 0;
                self.requests.set_reply(r, line);
                match classify_error(line) {
                    ErrorKind::TryAgain => self.tally.retries_tryagain += 1,
                    _ => self.tally.retries_other += 1,
                }
                self.wait(r, Bytes::Own(bytes), self.now.ms + ms + jitter, refresh);
            }
            Next::Divide => self.divide(r, &bytes),
            Next::Heal if self.script_of(&bytes).is_none() => self.complete(r, line),
            Next::Heal => {
                self.requests[r].waits = 1;
                self.tally.retries_other += 1;
                self.launch_led(r, line, bytes);
            }
        }
    }

    /// Where a redirect led it, or behind its script once more; not before younger ones that it
    /// would be behind are answered.
    fn launch_led(&mut self, r: u32, line: &[u8], bytes: Vec<u8>) {
        let shared = !self.requests[r].marks.has(Marks::PRIVATE);
        if shared && self.has_younger_in_flight(r, &bytes, line) {
            self.requests.set_reply(r, line);
            return self.wait(r, Bytes::Own(bytes), self.now.ms + 1, false);
        }
        self.launch(r, Bytes::Own(bytes));
    }

    /// MOVED to a node that we know: the map is patched here at once, and everywhere soon.
    fn follow(&mut self, r: u32, line: &[u8]) {
        self.requests[r].redirects += 1;
        self.tally.redirects_moved += 1;
        let from = self.nodes[self.requests[r].node].address;
        let Some((slot, _)) = parse_redirect(line) else { return };
        let Some((endpoint, Some(node))) = self.redirect_target(r, line) else { return };
        // Only the slot that was asked for is believed.
        if slot != self.requests[r].slot {
            return;
        }
        if self.map.get(slot) != node {
            self.map.patch(slot, node);
        }
        let report = Report::Moved { slot, endpoint, from, known: true };
        self.actions.push(Action::Report(report));
    }

    /// MOVED that a script may have made up: it leads this request and nobody else's. Whether the
    /// map is to be another one the nodes are asked.
    fn follow_alone(&mut self, r: u32, line: &[u8]) {
        self.requests[r].redirects += 1;
        self.tally.redirects_moved += 1;
        self.actions.push(Action::Report(Report::WantRefresh));
        let Some((slot, _)) = parse_redirect(line) else { return };
        let Some((_, Some(node))) = self.redirect_target(r, line) else { return };
        let entry = &mut self.requests[r];
        if slot == entry.slot {
            entry.node = node;
            entry.marks.set(Marks::BY_NODE);
        }
    }

    /// As `follow`, for a subscription. `false`: the map does not know the target.
    pub(super) fn follow_subscriber(&mut self, r: u32, line: &[u8]) -> bool {
        let known = self.redirect_target(r, line).is_some_and(|(_, node)| node.is_some());
        match known {
            true => self.follow(r, line),
            false => self.actions.push(Action::Report(Report::WantRefresh)),
        }
        known
    }

    /// The target is not in the map: nothing connects there until the topology thread has seen it.
    fn confirm(&mut self, r: u32, line: &[u8], bytes: Vec<u8>) {
        let from = self.nodes[self.requests[r].node].address;
        // A script may name any slot; only the one that was asked for is believed.
        if let (Some((slot, _)), Some((endpoint, _))) =
            (parse_redirect(line), self.redirect_target(r, line))
            && slot == self.requests[r].slot
        {
            let report = Report::Moved { slot, endpoint, from, known: false };
            self.actions.push(Action::Report(report));
        }
        self.requests[r].marks.set(Marks::CONFIRMING);
        self.requests.set_reply(r, line);
        let budget = CONFIRM_BUDGET_MS.min(self.settings.request_timeout_ms);
        self.wait(r, Bytes::Own(bytes), self.now.ms + budget, true);
    }

    /// Legs whose time has come, or to which the news matters, look again.
    pub(super) fn wake_waiting(&mut self, news: News) {
        let now = self.now.ms;
        let only_time = matches!(news, News::Time);
        if self.waits.list.is_empty() || (only_time && now < self.waits.next_ms) {
            return;
        }
        let mut list = std::mem::take(&mut self.waits.list);
        let mut due = Vec::new();
        let mut next_ms = u64::MAX;
        list.retain(|wait| {
            if !self.still_waits(wait) {
                return false;
            }
            let woken =
                wait.until_ms <= now || (wait.on_topology && self.matters(wait.request, &news));
            if woken {
                due.push(*wait);
            } else {
                next_ms = next_ms.min(wait.until_ms);
            }
            !woken
        });
        if list.is_empty() {
            list = Vec::new();
        }
        self.waits.list = list;
        self.waits.next_ms = next_ms;
        for wait in due {
            // An earlier one's end may have closed the client, and with it this one.
            if self.still_waits(&wait) {
                self.wake(wait.request);
            }
        }
    }

    fn still_waits(&self, wait: &Wait) -> bool {
        self.requests.get(wait.request).is_some_and(|entry| {
            entry.state == State::Waiting && entry.next_in_backend == wait.ticket
        })
    }

    /// Whether a leg that waits for news of the map waits for these. One that waits for a
    /// redirect's target is not answered by a refresh that may have begun before.
    fn matters(&self, r: u32, news: &News) -> bool {
        let entry = &self.requests[r];
        if !entry.marks.has(Marks::CONFIRMING) {
            return matches!(news, News::Map | News::Refreshed);
        }
        let target = self.redirect_target(r, self.requests.reply(r));
        match news {
            News::Time | News::Refreshed => false,
            News::Map => target.is_none_or(|(_, node)| node.is_some()),
            News::Confirmed(endpoint) => target.is_none_or(|(named, _)| named == **endpoint),
        }
    }

    fn wake(&mut self, r: u32) {
        let bytes = self.requests.take_own(r);
        if self.requests[r].marks.has(Marks::CONFIRMING) {
            let line = self.requests.take_reply(r);
            let next = self.decide(r, &line);
            return self.act(r, next, &line, bytes);
        }
        if self.age_ms(r) >= self.settings.request_timeout_ms {
            return self.give_up(r);
        }
        let line = self.requests.take_reply(r);
        let redirected = is_redirect(&line) && self.requests[r].redirects > 0;
        if redirected || classify_error(&line) == ErrorKind::NoScript {
            return self.launch_led(r, &line, bytes);
        }
        if !line.is_empty() {
            let (now_ms, asked) = (self.now.ms, self.tally.commands);
            // The cheap question first: thousands may wait here for one node.
            let may = self.repeats.allows(now_ms, asked);
            let early = may && self.has_younger_in_flight(r, &bytes, &line);
            self.requests.set_reply(r, &line);
            if early || !may {
                return self.wait_for_leave(r, bytes);
            }
            self.repeats.take(now_ms, asked);
        }
        self.launch(r, Bytes::Own(bytes));
    }

    /// A node has refused it, and too much is sent again as it is. Its time goes on.
    fn wait_for_leave(&mut self, r: u32, bytes: Vec<u8>) {
        let line = self.requests.take_reply(r);
        match self.decide(r, &line) {
            Next::Wait { refresh, .. } => {
                self.requests.set_reply(r, &line);
                let pause = NO_LEAVE_MS + self.random() % NO_LEAVE_MS;
                let until_ms = (self.now.ms + pause).next_multiple_of(NO_LEAVE_STEP_MS);
                self.wait(r, Bytes::Own(bytes), until_ms, refresh);
            }
            next => self.act(r, next, &line, bytes),
        }
    }

    /// A last refusal is no answer that says that nodes are well again.
    fn forget_refusals(&mut self, r: u32, line: &[u8]) {
        if route::is_refusal(classify_error(line)) {
            self.requests[r].waits = 0;
        }
    }

    /// A request whose connection is gone. `bytes`: its own, where they could be saved.
    pub(super) fn handle_lost(
        &mut self,
        r: u32,
        written: bool,
        timed_out: bool,
        bytes: Option<Vec<u8>>,
    ) {
        self.requests.drop_reply(r);
        let entry = &mut self.requests[r];
        let marks = entry.marks;
        if entry.client == NONE {
            return self.complete(r, b"");
        }
        if marks.has(Marks::PRIVATE) {
            return self.handle_private_loss(r, written, timed_out, bytes);
        }
        if marks.has(Marks::STREAMING) {
            entry.marks.unset(Marks::STREAMING);
            let c = entry.client;
            if self.clients[c].torn {
                // Half a reply was sent: nothing that can follow it is right.
                self.requests[r].state = State::Done;
                return self.close_client(c);
            }
            self.clients[c].output.roll_back();
            self.release_messages(c);
        }
        self.recover_lost(r, written, timed_out, bytes);
    }

    /// Nothing of its reply is with anybody: again, once more, or an error.
    pub(super) fn recover_lost(
        &mut self,
        r: u32,
        written: bool,
        timed_out: bool,
        bytes: Option<Vec<u8>>,
    ) {
        let marks = self.requests[r].marks;
        let loss = Loss {
            written,
            retry_safe: marks.has(Marks::RETRY_SAFE),
            repeated: marks.has(Marks::REPEATED),
            timed_out,
        };
        match (route::after_loss(&loss), bytes) {
            (AfterLoss::Again, Some(bytes)) => self.relaunch_later(r, bytes),
            (AfterLoss::Repeat, Some(bytes)) => {
                self.requests[r].marks.set(Marks::REPEATED);
                self.tally.retries_other += 1;
                self.relaunch_later(r, bytes);
            }
            (AfterLoss::TimedOut, _) => {
                self.tally.timeouts += 1;
                self.fail(r, errors::timeout);
            }
            (AfterLoss::Again | AfterLoss::Repeat | AfterLoss::Lost, _) => {
                self.tally.lost += 1;
                self.fail(r, errors::connection_lost);
            }
        }
    }

    /// As if it had just come, once the lost connection has been dealt with.
    fn relaunch_later(&mut self, r: u32, bytes: Vec<u8>) {
        let private = self.requests[r].marks.has(Marks::PRIVATE);
        let pause_ms = if private { super::private::PAUSE_MS } else { 0 };
        self.wait(r, Bytes::Own(bytes), self.now.ms + pause_ms, true);
    }
}
