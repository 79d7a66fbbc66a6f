"""Made ratings in the manner of MovieLens: which user likes which film."""

import numpy as np

NUM_USERS, NUM_FILMS = 5_000, 2_000
TASTES = 4  # Numbers that describe a user's taste and a film's kind.


def ratings(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns `user` and `film`, int64 of shape [count], and whether it is liked, float32 [count].

    Users and films are the same for every seed. A few films have most of the ratings.
    """
    world = np.random.RandomState(0)
    tastes = world.normal(size=(NUM_USERS, TASTES))  # [users, TASTES]
    # Users come in groups, so that a user with few ratings is like others.
    tastes = 0.3 * tastes + world.normal(size=(16, TASTES))[np.arange(NUM_USERS) % 16]
    kinds = world.normal(size=(NUM_FILMS, TASTES))  # [films, TASTES]
    drawn = np.random.RandomState(seed)
    user = drawn.randint(NUM_USERS, size=count)
    film = np.minimum(drawn.zipf(1.3, count), NUM_FILMS) - 1
    liking = np.sum(tastes[user] * kinds[film], axis=1)  # [count]
    liked = drawn.uniform(size=count) < 1 / (1 + np.exp(-2 * liking))
    return {"user": user.astype(np.int64), "film": film.astype(np.int64)}, liked.astype(np.float32)
