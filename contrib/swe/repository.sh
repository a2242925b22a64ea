# What prepares the repository of a task, and reads what an agent has changed in it. Run by `sh -c` with arguments.
set -e

#: from git
# A clone that only serves to fetch the ancestors of one commit; then the rest of it is gone. Images may lack the
# program git-upload-pack, which is a command of git as well.
git init -q --template= --bare "$1.git"
git -C "$1.git" fetch -q --upload-pack "git upload-pack" "$1" "+refs/*:refs/*"
git -C "$1.git" fetch -q --upload-pack "git upload-pack" "$1" +HEAD:refs/heads/forge-env-head 2>/dev/null || true
[ "$2" != HEAD ] || set -- "$1" refs/heads/forge-env-head "$3"
commit=$(git -C "$1.git" rev-parse --verify --quiet "$2^{commit}") || {
    echo "there is no commit $2 in it" >&2
    exit 3
}
git -C "$1.git" update-ref refs/heads/forge-env-base "$commit"
mkdir -p "$3" && cd "$3"
git init -q --template=
git fetch -q --no-tags --upload-pack "git upload-pack" "$1.git" refs/heads/forge-env-base
git checkout -q -B main FETCH_HEAD
rm -rf "$1" "$1.git" .git/FETCH_HEAD .git/hooks

#: in an image
# The files that an image has beside the tracked ones stay: they may have been built. Later commits are pruned.
cd "$1"
git checkout -q -f --detach "$2"
git for-each-ref --format="delete %(refname)" | git update-ref --stdin
git checkout -q -B main
git reflog expire --expire=now --all
rm -rf .git/FETCH_HEAD .git/ORIG_HEAD .git/hooks
git gc -q --prune=now

#: unpack
# If an archive has one folder at its top, as archives of code hosts do, this folder is taken.
mkdir "$1.d"
tar -xf "$1" -C "$1.d" --no-same-owner
root=$1.d
if [ "$(ls -A "$root" | wc -l)" = 1 ] && [ "$(ls -A "$root")" != .git ] && [ -d "$root/$(ls -A "$root")" ]; then
    root=$root/$(ls -A "$root")
fi
rm -rf "$2"
mkdir -p "$(dirname "$2")"
mv "$root" "$2"
rm -rf "$1" "$1.d"

#: base
# What has no history gets one commit, so that agent and verdict can tell what has changed.
cd "$1"
if [ ! -e .git ]; then
    git init -q --template= -b main
    git add -A -f
    git commit -q --allow-empty -m base
    rm -rf .git/hooks
fi
git update-ref refs/forge-env/base HEAD

#: diff
export GIT_INDEX_FILE=/tmp/.forge-env-index
rm -f "$GIT_INDEX_FILE"
git read-tree refs/forge-env/base
git add -A
git diff --cached --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv --output="$1" \
    refs/forge-env/base
