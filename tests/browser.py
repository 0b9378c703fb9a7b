"""Drive the course as a reader meets it: JupyterLab in a headless Chromium, on a copy of the notebooks.

with lab() as address, chromium() as browser:
    notebook = Notebook(browser, address, "01_autoregressive_decoding.ipynb")
    notebook.run_all()
    notebook.first_widget().locator(".noUi-handle").first.press("ArrowRight")
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


def program() -> str | None:
    """Path of an installed Chromium, if there is one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextlib.contextmanager
def lab(theme="JupyterLab Light", notebooks=ROOT / "notebooks"):
    """A JupyterLab over a copy of notebooks/, with its own settings; yields its address."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        shutil.copytree(notebooks, work / "notebooks", ignore=shutil.ignore_patterns(".*"))
        settings = work / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "themes.jupyterlab-settings").write_text(f'{{"theme": "{theme}"}}')
        (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}",
                   "--LabApp.expose_app_in_browser=True",
                   "--IdentityProvider.token=course", f"--LabApp.user_settings_dir={work / 'settings'}",
                   f"--LabApp.workspaces_dir={work / 'workspaces'}", str(work / "notebooks")]  # fmt: skip
        with (work / "log").open("w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait_for(f"http://127.0.0.1:{port}/api", server, work / "log")
                yield f"http://127.0.0.1:{port}"
            finally:
                server.terminate()
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()


def _wait_for(url, server, log, seconds=90):
    for _ in range(seconds * 2):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(url, timeout=2)
        if server.poll() is not None:
            break
        time.sleep(0.5)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def chromium():
    """A headless browser page source; yields a Playwright browser context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program(), args=QUIET, headless=True)
        context = browser.new_context(viewport={"width": 1400, "height": 1100})
        try:
            yield context
        finally:
            browser.close()


class Notebook:
    """One notebook open in JupyterLab."""

    def __init__(self, context, address: str, name: str) -> None:
        self.errors: list[str] = []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{address}/lab/tree/{name}?token=course&reset", wait_until="domcontentloaded")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=90_000)
        # Asked to run before its kernel is connected, JupyterLab opens a dialog instead.
        self.page.wait_for_selector('#jp-main-statusbar :text("| Idle")', timeout=90_000)

    def run_all(self, seconds: int = 400) -> None:
        """Restart the kernel's work from the top: Run, Run All Cells; wait until the last cell has run."""
        self.page.click('.lm-MenuBar-itemLabel:text-is("Run")')
        self.page.click('.lm-Menu-itemLabel:text-is("Run All Cells")')
        busy = self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="busy"]')
        dialog = self.page.locator(".jp-Dialog button.jp-mod-accept")
        busy.or_(dialog).first.wait_for(timeout=30_000)
        if dialog.count():
            dialog.first.click()
            busy.first.wait_for(timeout=30_000)
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=seconds * 1000)
        assert not self.failed_cells(), self.failed_cells()

    def failed_cells(self) -> list[str]:
        """Every error that a cell ended with, read from the notebook itself: only cells near the screen are drawn."""
        return self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
                .flatMap(cell => cell.toJSON().outputs || [])
                .filter(output => output.output_type === 'error')
                .map(output => `${output.ename}: ${output.evalue}`)"""
        )

    def first_widget(self):
        """Scroll to the first widget panel that has a slider; return its locator."""
        return self._scroll_to(self.page.locator(".jupyter-widgets.widget-vbox", has=self.page.locator(".noUi-handle")))

    def widget_with(self, text: str):
        """Scroll to the widget panel that holds a control labelled `text`; return its locator."""
        return self._scroll_to(
            self.page.locator(".jupyter-widgets.widget-vbox", has=self.page.get_by_text(text, exact=True))
        )

    def _scroll_to(self, wanted):
        panel = self.page.locator(".jp-WindowedPanel-outer").first
        panel.evaluate("e => e.scrollTo(0, 0)")
        for _ in range(120):  # JupyterLab draws a cell only when it comes near the screen
            if wanted.count():
                break
            panel.evaluate("e => e.scrollBy(0, 600)")
            time.sleep(0.15)
        wanted.first.scroll_into_view_if_needed(timeout=20_000)
        return wanted.first

    def close(self) -> None:
        """Stop the notebook's kernel and close its page."""
        with contextlib.suppress(Exception):
            self.page.evaluate(
                """async () => {
                    const query = '?token=course';
                    for (const s of await (await fetch('/api/sessions' + query)).json())
                        await fetch('/api/sessions/' + s.id + query, {method: 'DELETE'});
                }"""
            )
        self.page.close()
