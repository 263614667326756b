"""Looking into the user's folders, and saying what is there when it is not what was needed."""

from pathlib import Path

from ..errors import UserError


def listing(folder: Path, limit: int = 6) -> str:
    """The first few names in a folder."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    if not names:
        return "nothing"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def subfolders(folder: Path) -> list[Path]:
    """The visible folders in a folder, by name."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def require_folder(folder: Path, needs: str) -> None:
    """Refuse a data folder that is not there; `needs` says what it has to hold."""
    if folder.is_dir():
        return
    advice = f"Give `data_dir` the folder that holds {needs}."
    if folder.exists():
        raise UserError(f"data folder {folder} is a file. {advice}")
    parent = next(above for above in folder.absolute().parents if above.is_dir())
    raise UserError(f"data folder {folder} does not exist; {parent} holds {listing(parent)}. {advice}")


def not_found(folder: Path, looked_for: str, advice: str) -> UserError:
    """A folder that lacks something: what was looked for, and what is there."""
    return UserError(f"{folder} has no {looked_for}; found {listing(folder)}. {advice}")
