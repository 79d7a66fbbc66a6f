"""Loads an exported model and asks it about an iris."""

# ruff: noqa: ANN003, ANN201 (as such programs are)

import json
import sys

import tensorflow as tf

v1 = tf.compat.v1


def make_example(**measures):
    features = {
        name: tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        for name, value in measures.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


examples = [
    make_example(sepal_length=5.1, sepal_width=3.5, petal_length=1.4, petal_width=0.2),
    make_example(sepal_length=6.3, sepal_width=2.8, petal_length=5.1, petal_width=1.5),
]
result = {}
with v1.Session(graph=tf.Graph()) as session:
    model = v1.saved_model.loader.load(session, [v1.saved_model.tag_constants.SERVING], sys.argv[1])
    for name, signature in sorted(model.signature_def.items()):
        (fed,) = signature.inputs.values()
        fetched = {key: info.name for key, info in signature.outputs.items()}
        values = session.run(fetched, {fed.name: examples})
        result[name] = {
            "method": signature.method_name,
            "inputs": list(signature.inputs),
            "outputs": {
                key: value.astype(str).tolist() if value.dtype == object else value.tolist()
                for key, value in values.items()
            },
        }
print(json.dumps(result))
